"""An MCP server on this machine, made with the official SDK, for the chat page to call."""

import asyncio
import contextlib
import socket
import threading
import time

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as place:
        return place.getsockname()[1]


class ToolServer:
    """Its tools, and what was asked of them; `port`: that of one that was stopped."""

    def __init__(self, port=None, **options):
        self.called = []
        self.requests = []  # [(method, headers)]
        self.free = threading.Event()  # what `wait` waits for
        server = MCPServer("tools", log_level="ERROR")

        @server.tool()
        def get_weather(city: str) -> str:
            """The weather of a city now"""
            self.called.append(("get_weather", city))
            return f"It rains in {city}."

        @server.tool()
        def fail() -> str:
            """Fails"""
            self.called.append(("fail",))
            raise ValueError("no such thing")

        @server.tool()
        async def wait() -> str:
            """Takes long"""
            self.called.append(("wait",))
            while not self.free.is_set():
                await asyncio.sleep(0.01)
            return "done"

        local = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*"], allowed_origins=["http://127.0.0.1:*"])
        self.app = server.streamable_http_app(transport_security=local, **options)
        self.app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"],
                                expose_headers=["Mcp-Session-Id"])
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            self.requests.append((scope["method"], {name.decode(): value.decode() for name, value in scope["headers"]}))
        await self.app(scope, receive, send)

    def start(self):
        self.uvicorn = uvicorn.Server(uvicorn.Config(self, port=self.port, log_level="error", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 60
        while not self.uvicorn.started:
            assert time.monotonic() < deadline and self.thread.is_alive(), "the MCP server does not start"
            time.sleep(0.01)

    def stop(self):
        self.free.set()
        self.uvicorn.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()
