"""An assistant's client, over real pipes, finds videos and cannot change anything."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ucofia.index.index import Index

pytest.importorskip("mcp", reason='the SDK is missing; pip install "ucofia[mcp]"')

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = """
import sys
sys.path[:0] = {paths}
from fakes import colour_model
from ucofia.index.index import Index
from ucofia.serve.mcp_server import run
run(Index.open({index!r}, colour_model()))
"""


@asynccontextmanager
async def connected(index: Index) -> AsyncIterator[ClientSession]:
    paths = [str(Path(__file__).parent.parent), *filter(None, sys.path)]
    script = SERVER.format(paths=paths, index=index.path)
    server = StdioServerParameters(
        command=sys.executable, args=["-c", script], env={"OMP_NUM_THREADS": "1", **os.environ}
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


async def asked(session: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await session.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


def test_an_assistant_finds_describes_and_explains(index: Index) -> None:
    async def ask_server() -> None:
        async with connected(index) as session:
            tools = (await session.list_tools()).tools
            assert {tool.name for tool in tools} == {"search", "describe", "explain", "info"}
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            found = await asked(session, "search", text="blue", top=2)
            first = found["videos"][0]
            hit = index.search("blue")[0]
            assert (first["path"], first["segment"]) == (hit.path, hit.segment)
            assert first["confidence"] == pytest.approx(hit.confidence)
            assert len(found["videos"]) == 2
            words = await asked(session, "describe", segment=first["segment"], top=1)
            assert words["texts"] == ["blue blue"]
            why = await asked(session, "explain", text="blue", segment=first["segment"])
            assert why["score"] == pytest.approx(hit.score)
            assert [word["word"] for word in why["words"]] == ["blue"]
            info = await asked(session, "info")
            assert info["videos"] == 5
            wrong = await session.call_tool("explain", {"text": "blue", "segment": "none"})
            assert wrong.is_error and "no video" in str(wrong.content)

    anyio.run(ask_server)
