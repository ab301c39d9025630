"""A directory in front of pebble's, with renewal information (RFC 9773), which pebble 2.4 does not have.

Arguments: own port, port of pebble, mode, certificate, key. The URLs in the directory are pebble's, except that of renewal
information. Modes: `past`: the suggested window is over; `future`: it begins after 75 of 90 days; `limited`: 429, try again in two hours.
"""

import datetime
import http.server
import json
import ssl
import sys
import urllib.request

PORT, PEBBLE, MODE, CERTIFICATE, KEY = sys.argv[1:]


def window():
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    start = now + datetime.timedelta(days=-2 if MODE == "past" else 75)
    texts = [time.isoformat().replace("+00:00", "Z") for time in (start, start + datetime.timedelta(days=1))]
    return {"suggestedWindow": {"start": texts[0], "end": texts[1]}, "explanationURL": "https://ca.example/why"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if MODE == "limited":
            return self.answer(429, {"type": "urn:ietf:params:acme:error:rateLimited"}, "7200")
        if self.path.startswith("/renewal-info/"):
            return self.answer(200, window(), "21600")
        context = ssl.create_default_context(cafile=CERTIFICATE)
        with urllib.request.urlopen(f"https://localhost:{PEBBLE}/dir", context=context) as response:
            directory = json.load(response)
        self.answer(200, directory | {"renewalInfo": f"https://localhost:{PORT}/renewal-info"}, None)

    def answer(self, status, value, retry_after):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
