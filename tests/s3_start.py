"""An S3 server on loopback, with a bucket; the environment says where it is."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def s3_bucket(name: str = "clips") -> Iterator[str]:
    """Start moto's server in a thread of this process, which children find as well."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ENDPOINT": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        boto3.client("s3").create_bucket(Bucket=name)
        yield name
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(before)
