"""The evaluator: the numbers of the published one, without Java, in about a second.

from starc.evaluation import score
print(score("predictions.json", "reference.json").metrics["CIDEr"])
"""

from starc.evaluation.report import Report, compare, score

__all__ = ["Report", "compare", "score"]
