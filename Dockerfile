# Two stages: the first installs into a virtual environment, the second carries that and nothing else.
FROM python:3.11-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/waystation
WORKDIR /src

# The dependencies first: this layer stays as long as the lock does.
COPY requirements.lock ./
RUN /opt/waystation/bin/pip install --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY migrations migrations
RUN /opt/waystation/bin/pip install --no-deps .


FROM python:3.11-slim

RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin waystation \
    && install -d -o waystation -g waystation /data
COPY --from=build /opt/waystation /opt/waystation

# There is no authentication: the server listens on every address of the container, so publish its port on loopback only
# (`-p 127.0.0.1:7777:7777`) or put something in front of it that asks who is there.
ENV PATH=/opt/waystation/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    WAYSTATION_HOST=0.0.0.0 \
    WAYSTATION_PORT=7777 \
    WAYSTATION_DATABASE_URL=sqlite:////data/waystation.db

USER waystation
WORKDIR /data
VOLUME /data
EXPOSE 7777

HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['WAYSTATION_PORT']}/health\", timeout=4)"]

# SIGTERM drains: runs may go on for WAYSTATION_DRAIN_S, what is left is handed back. The exec form lets the signal arrive.
STOPSIGNAL SIGTERM
CMD ["waystation", "serve"]
