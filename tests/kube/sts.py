"""An STS that knows one user and checks signatures, for tokens of the stand-in's tests."""

import hashlib
import hmac
import http.server
import threading
from urllib.parse import parse_qsl, quote, urlsplit

KEY, SECRET, REGION = "AKIDTEST", "a-secret-key", "us-west-2"
ARN = "arn:aws:iam::123456789012:user/tester"
_ANSWER = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    f"<Arn>{ARN}</Arn></GetCallerIdentityResult></GetCallerIdentityResponse>"
).encode()


def signature(url: str, headers: dict[str, str]) -> str:
    """What AWS would compute for a presigned GET."""
    query = dict(parse_qsl(urlsplit(url).query))
    query.pop("X-Amz-Signature", None)
    signed = query["X-Amz-SignedHeaders"].split(";")
    canonical = "\n".join(
        [
            "GET",
            "/",
            "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in sorted(query.items())),
            *(f"{name}:{headers.get(name, '')}" for name in signed),
            "",
            ";".join(signed),
            hashlib.sha256(b"").hexdigest(),
        ]
    )
    scope = query["X-Amz-Credential"].partition("/")[2]
    text = "\n".join(
        ["AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Sts:
    def __init__(self):
        sts = self
        self.asked = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                sts.asked += 1
                headers = {name.lower(): value for name, value in self.headers.items()}
                query = dict(parse_qsl(urlsplit(self.path).query))
                good = hmac.compare_digest(signature(self.path, headers), query["X-Amz-Signature"])
                body = _ANSWER if good else b"<Error/>"
                self.send_response(200 if good else 403)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
