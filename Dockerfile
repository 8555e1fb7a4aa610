FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Queries are checked against .sqlx in the repository, so the build needs no database.
ENV SQLX_OFFLINE=true
RUN cargo build --profile dist --locked --bin flashsale

FROM debian:bookworm-slim
COPY --from=build /src/target/dist/flashsale /usr/local/bin/flashsale
USER nobody
WORKDIR /tmp
ENV FLASHSALE_LISTEN=0.0.0.0:8080
EXPOSE 8080
ENTRYPOINT ["flashsale"]
CMD ["serve"]
