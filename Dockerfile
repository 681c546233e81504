# docker build --tag ucofia .    With torch as the registry has it; CUDA: run with --gpus all and --device cuda
# docker build --tag ucofia --build-arg TORCH_INDEX=ADDRESS .
#     A small image without CUDA: ADDRESS is the index of CPU wheels that PyTorch's installation page names.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG TORCH_INDEX=

RUN useradd --create-home --uid 1000 ucofia \
    && mkdir /index /cache /videos \
    && chown ucofia /index /cache
COPY constraints.txt pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir --constraint /source/constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && pip install --no-cache-dir --constraint /source/constraints.txt "/source[starter,serve]" \
    && rm -r /source

USER ucofia
WORKDIR /home/ucofia
ENV UCOFIA_CACHE=/cache UCOFIA_INDEX=/index/videos PYTHONUNBUFFERED=1
RUN ucofia setup --yes
VOLUME ["/index"]
EXPOSE 8642
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "import urllib.request as u; u.urlopen('http://127.0.0.1:8642/healthz', timeout=4)"]
ENTRYPOINT ["ucofia"]
CMD ["serve", "--host", "0.0.0.0"]
