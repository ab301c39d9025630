"""Servers and a client that are not ours, for tests of forwarding.

    backends.py aiohttp PORT    an application: /echo, /stream, /text/SEED, /chat (WebSocket)
    backends.py websockets PORT a WebSocket server that echoes messages, with compression
    backends.py client URL      sends messages to either and checks that they come back
"""

import asyncio
import sys
from random import Random


async def serve_aiohttp(port):
    from aiohttp import WSMsgType, web

    async def echo(request):
        body = await request.read()
        fields = {"X-Seen-For": request.headers["X-Forwarded-For"], "X-Seen-Host": request.host}
        return web.Response(body=body, headers=fields)

    async def stream(request):
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for number in range(200):
            await response.write(f"{number}\n".encode() * 500)
        await response.write_eof()
        return response

    async def text(request):
        # In pieces of random sizes; the client knows the seed.
        random, response = Random(int(request.match_info["seed"])), web.StreamResponse()
        response.content_type = "text/plain"
        await response.prepare(request)
        for _ in range(random.randrange(60)):
            number = random.randrange(1000)
            await response.write(f"{number}\n".encode() * random.choice([1, 100, 10_000]))
            if random.randrange(4) == 0:
                await asyncio.sleep(0.001)
        await response.write_eof()
        return response

    async def chat(request):
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            if message.type == WSMsgType.TEXT:
                await socket.send_str(message.data)
            elif message.type == WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket

    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.route("*", "/echo", echo), web.get("/stream", stream), web.get("/chat", chat)])
    app.add_routes([web.get("/text/{seed}", text)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def serve_websockets(port):
    import websockets

    async def echo(socket):
        async for message in socket:
            await socket.send(message)

    async with websockets.serve(echo, "127.0.0.1", port, max_size=None):
        await asyncio.Event().wait()


async def client(url):
    import websockets

    async with websockets.connect(url, max_size=None) as socket:
        for message in ["hello", "", b"\x00\xff" * 500_000, "x" * 1_000_000]:
            await socket.send(message)
            assert await socket.recv() == message, len(message)
        # Many in flight.
        messages = [str(number) * 100 for number in range(300)]

        async def send():
            for message in messages:
                await socket.send(message)

        sending = asyncio.create_task(send())
        for message in messages:
            assert await socket.recv() == message
        await sending
        await (await socket.ping())
        await socket.close(4000, "done")
        # Each side says its own: websockets repeats the other's, aiohttp does not.
        assert socket.close_code in (1000, 4000), socket.close_code
    print("ok")


mode, argument = sys.argv[1:]
if mode == "aiohttp":
    asyncio.run(serve_aiohttp(int(argument)))
elif mode == "websockets":
    asyncio.run(serve_websockets(int(argument)))
else:
    asyncio.run(client(argument))
