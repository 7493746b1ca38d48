"""`python -m starc_eval` is `starc-eval`."""

from starc_eval.command import main

if __name__ == "__main__":
    main()
