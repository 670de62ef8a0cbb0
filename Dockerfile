# headcount in a container: listens on all addresses, keeps its numbers in Redis and Postgres.
#
#   docker build --tag headcount .
#   docker run --env HEADCOUNT_REDIS__URL=… --env HEADCOUNT_POSTGRES__URL=… --publish 8080:8080 headcount
#
# Commands other than `serve` follow the image's name: docker run headcount doctor

FROM rust:1.95-bookworm AS build
WORKDIR /build

# What librdkafka, the driver of Kafka, is built with.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libssl-dev libzstd-dev make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*

# The dependencies, in a layer that stays until Cargo.toml or Cargo.lock changes: the crate is empty
# here. Cargo wants the file of every target that the manifest names.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY tests tests
COPY crates crates
RUN mkdir src benches \
    && touch src/lib.rs \
    && for crate in tests/*; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && echo 'fn main() {}' > src/main.rs \
    && sed -n '/^\[\[bench\]\]/,/^$/ s/^name = "\(.*\)"/\1/p' Cargo.toml \
        | while read -r bench; do cp src/main.rs "benches/$bench.rs"; done \
    && cargo build --release --locked --features kafka

# The crate itself. Sources may be older than the empty ones above, and Cargo goes by the time.
COPY . .
RUN touch src/lib.rs src/main.rs \
    && cargo build --release --locked --features kafka \
    && target/release/headcount --version

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="headcount" \
      org.opencontainers.image.description="How many people are watching this video now, and how often was it played" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"

# What librdkafka is linked to.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libssl3 libzstd1 zlib1g \
    && rm -rf /var/lib/apt/lists/*

# For TLS to Redis, Postgres, Kafka and what `simulate` is pointed at.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt

# By number, so that Kubernetes can see that it isn't root. The folder is where the embedded backend's
# file would be: mount a volume there if you set HEADCOUNT_BACKEND=embedded.
RUN groupadd --gid 10001 headcount \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/headcount --shell /usr/sbin/nologin headcount \
    && install --directory --owner=10001 --group=10001 --mode=750 /var/lib/headcount
COPY --from=build /build/target/release/headcount /usr/local/bin/headcount

USER 10001:10001
WORKDIR /var/lib/headcount
ENV HEADCOUNT_BACKEND=redis \
    HEADCOUNT_SERVER__LISTEN=0.0.0.0:8080 \
    HEADCOUNT_OPS__LISTEN=0.0.0.0:9180
EXPOSE 8080 9180

# The binary is process 1 and gets the signal itself: a drain, then exit code 0. It takes up to
# server.drain (20 s); Docker waits 10 s unless told otherwise: `docker stop --time 30`.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["headcount", "healthcheck"]
ENTRYPOINT ["headcount"]
