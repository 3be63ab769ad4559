"""The doctor's look at an MLflow server."""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import unquote, urlsplit, urlunsplit

from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING, Check

SECONDS = 3.0  # for one answer
_ANSWERS, _VERSION, _RUNS = "store answers", "version of the server", "access to runs"
_SEARCH = "/api/2.0/mlflow/experiments/search?max_results=1"
_MOST_BYTES = 10_000


def check_http(address: str) -> list[Check]:
    """Rows about the server: does it answer, which version, may we ask for runs."""
    try:
        code, text = _get(address, "/health")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        advice = "see that the server runs, and that the address is right"
        return [Check(_ANSWERS, PROBLEM, f"no: {reason}", advice)]
    if (code, text) != (200, "OK"):
        found = f"something that is no MLflow server: /health gives {code}"
        return [Check(_ANSWERS, PROBLEM, found, "see that the address is right")]
    schema = "the server looks after its own"
    return [
        Check(_ANSWERS, OK, "healthy"),
        _version(*_get(address, "/version")),
        _access(*_get(address, _SEARCH)),
        Check("schema of the store", NOT_APPLICABLE, schema),
    ]


def _version(code: int, theirs: str) -> Check:
    try:
        ours = version("mlflow")
    except PackageNotFoundError:
        return Check(_VERSION, NOT_APPLICABLE, "MLflow is not installed here")
    if code != 200:
        return Check(_VERSION, WARNING, f"not told: /version gives {code}")
    found = f"{theirs}, here {ours}"
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return Check(_VERSION, OK, found)
    return Check(_VERSION, WARNING, found, "the same version on both sides")


def _access(code: int, text: str) -> Check:
    if code == 200:
        return Check(_RUNS, OK, "yes")
    if code in (401, 403):
        advice = "MLFLOW_TRACKING_USERNAME and _PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return Check(_RUNS, PROBLEM, f"refused with {code}", advice)
    found = f"the server fails with {code}: {' '.join(text.split())[:200]}"
    return Check(_RUNS, PROBLEM, found, "its own log says why")


def _get(address: str, path: str) -> tuple[int, str]:
    """Status and the beginning of the text that a page of the server gives.

    Raises:
        OSError, HTTPException: no answer, or none that is HTTP.
    """
    parts = urlsplit(address)
    user, _, host = parts.netloc.rpartition("@")
    base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    request = urllib.request.Request(base + path)  # noqa: S310 - http(s), checked
    if credentials := _credentials(user):
        request.add_header("Authorization", credentials)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_MOST_BYTES).decode(errors="replace")


def _credentials(user: str) -> str:
    """What MLflow's client would say of who it is."""
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return f"Bearer {token}"
    if name := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        user = f"{name}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
    if not user:
        return ""
    return f"Basic {base64.b64encode(unquote(user).encode()).decode()}"
