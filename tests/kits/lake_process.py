"""A lake in another process, told what to do line by line. Run as a program by `LakeProcess`.

    python lake_process.py ROOT

It either starts a JVM of its own, or joins the one whose gateway the environment names, the way PySpark itself does
under `spark-submit`: then a process costs two seconds, and only Python dies when it is killed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kits.paths import environment

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession

FAST = '[spark]\n"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"\n"spark.driver.memory" = "1g"\n'


class Refused(Exception):
    """The other process answered with a coded error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class LakeProcess:
    """The near end."""

    def __init__(self, root: Path, spark: SparkSession | None = None) -> None:
        variables = environment()
        if spark is not None:
            gateway = spark.sparkContext._gateway
            assert gateway is not None
            parameters = gateway.gateway_parameters
            variables |= {
                "PYSPARK_GATEWAY_PORT": str(parameters.port),
                "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
            }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kits.lake_process", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def ask(self, call: str, *arguments: Any) -> Any:
        """Call something over there and wait for the answer."""
        self.tell(call, *arguments)
        return self.answer()

    def tell(self, call: str, *arguments: Any) -> None:
        """Call something over there; `answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The answer to the oldest open question."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(self._process.communicate()[1][-4000:])
        kind, *value = json.loads(line)
        if kind == "refused":
            raise Refused(*value)
        return value[0]

    def outcome(self) -> Any:
        """The answer, or the code of the error."""
        try:
            return self.answer()
        except Refused as e:
            return e.code

    def killed(self) -> bool:
        """Whether it ended by SIGKILL; waits for the end."""
        return self._process.wait(timeout=300) == -signal.SIGKILL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=60)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._process.wait()


# --- The far end -----------------------------------------------------------------------------------------------------


def serve(root: Path) -> None:
    import millstream
    from millstream import MillstreamError

    answers, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    spark = _joined() if "PYSPARK_GATEWAY_PORT" in os.environ else None
    if spark is None:
        root.mkdir(parents=True, exist_ok=True)
        (root.parent / f"{root.name}.toml").write_text(FAST)
    config = None if spark is not None else root.parent / f"{root.name}.toml"
    with millstream.connect(root, spark=spark, config=config) as ms:
        for line in sys.stdin:
            call, *arguments = json.loads(line)
            try:
                reply = ["done", _calls(ms)[call](*arguments)]
            except MillstreamError as e:
                reply = ["refused", str(e.code), str(e)]
            answers.write(json.dumps(reply, default=str) + "\n")
            answers.flush()


def _calls(ms: Any) -> dict[str, Any]:
    return {
        "ready": lambda: True,
        "sql": lambda text: [list(row) for row in ms.sql(text).collect()],
        "run": lambda *texts: [ms.sql(text) for text in texts] and None,
        "create": lambda name, query: ms.create_stream_table(name, query, refresh_mode="DIFFERENTIAL"),
        "drop": lambda name: ms.drop_stream_table(name, cascade=True),
        "refresh": lambda name, mode=None: str(ms.refresh_stream_table(name, mode=mode).action),
        "verify": lambda name: ms.verify(name).ok,
        "maintain": lambda: len(ms.maintain()),
        "rows": lambda name: [list(row) for row in ms.table(name).collect()],
        "die": die,
    }


def die(method: str, when: str, nth: int = 1) -> None:
    """Have this process killed by SIGKILL before or after the nth call of a step of a refresh.

    The steps are methods of the catalog, such as `begin_refresh` and `complete_refresh`; `commit`: whatever changes a
    stored table; and functions, as `module:name`, with the module that calls them, or `module:Class.method`.
    """
    from millstream.catalog import Catalog
    from millstream.engine.storage import DeltaStore

    calls = 0

    def deadly(original: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            at = calls
            result = original(*args, **kwargs)
            if at == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    if method == "commit":
        for name in ("apply", "append", "replace", "widen"):
            setattr(DeltaStore, name, deadly(getattr(DeltaStore, name)))
    elif ":" in method:
        module, _, name = method.partition(":")
        *within, name = name.split(".")
        found: Any = functools.reduce(getattr, within, importlib.import_module(module))
        setattr(found, name, deadly(getattr(found, name)))
    else:
        setattr(Catalog, method, deadly(getattr(Catalog, method)))


def _joined() -> SparkSession:
    """A session in the JVM of the process that started this one."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(jsc=java_context, gateway=gateway, conf=_conf(jvm, java_context))
    return SparkSession(context).newSession()


def _conf(jvm: Any, java_context: Any) -> Any:
    from pyspark import SparkConf

    return SparkConf(_jvm=jvm, _jconf=java_context.getConf())


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
