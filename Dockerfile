# Captioning in a container, with the embedded model:
#
#     docker build -t starc .
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/videos" starc caption recipe.mp4 -o recipe.vtt
#
# --build-arg PIP_EXTRA_INDEX_URL=… names an index with torch's CPU build, which is smaller;
# --build-arg EXTRAS=viewer,whisper,url adds extras.
FROM python:3.11-slim-bookworm

ARG EXTRAS=viewer
ARG PIP_EXTRA_INDEX_URL

COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt torch \
    && pip install --no-cache-dir -c /src/constraints.txt /src/packages/starc-eval "/src[$EXTRAS]" \
    && rm -rf /src

ENV XDG_CACHE_HOME=/tmp/cache
WORKDIR /videos
ENTRYPOINT ["starc"]
CMD ["--help"]
