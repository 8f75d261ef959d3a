"""Requests that are not answered: one error, in the shape in which OpenAI's clients read it."""

import json

from aiohttp import web

from training.errors import SkypodError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Refusal(SkypodError):
    """`kind` names it in metrics and logs, which never hold `problem`: it may quote the request."""

    def __init__(
        self, status: int, kind: str, problem: str, remedy: str = "", retry_after_s: float | None = None
    ):
        super().__init__(problem, remedy)
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s

    def encode(self) -> bytes:
        """The JSON that OpenAI's clients expect."""
        kind_of = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        message = f"{self.problem}; {self.remedy}" if self.remedy else self.problem
        error = {"message": message, "type": kind_of, "param": None, "code": self.kind}
        return json.dumps({"error": error}).encode()

    def response(self) -> web.Response:
        """The HTTP answer."""
        response = web.Response(status=self.status, body=self.encode(), content_type="application/json")
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        return response
