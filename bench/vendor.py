"""Put the pinned drawing libraries into static/vendor, with their licences and a manifest of hashes: ``python -m bench.vendor``.

Packages are fetched by ``npm pack``. Files are copied as they are, but for a comment that names a source map nobody serves, and for
vega-interpreter, which is published as a module only: its import and export become reads and writes of globals.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[1] / "static" / "vendor"
PACKAGES = (
    ("vega", "6.4.0", "build/vega.min.js", "min.js"),
    ("vega-lite", "6.4.3", "build/vega-lite.min.js", "min.js"),
    ("vega-interpreter", "2.3.2", "build/vega-interpreter.js", "js"),
)
_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")
_IMPORT = re.compile(r"^import \{([^}]*)\} from 'vega-util';$", re.MULTILINE)
_EXPORT = re.compile(r"^export \{ expression as expressionInterpreter \};$", re.MULTILINE)


def main() -> None:
    """Fetch, copy and write the manifest anew."""
    VENDOR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        entries = [entry for package in PACKAGES for entry in _put(Path(folder), *package)]
    (VENDOR / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def _put(folder: Path, name: str, version: str, source: str, ending: str) -> list[dict[str, str]]:
    subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, timeout=300)
    with tarfile.open(folder / f"{name}-{version}.tgz") as archive:
        archive.extractall(folder / name, filter="data")
    root = folder / name / "package"
    told = json.loads((root / "package.json").read_text(encoding="utf-8"))
    code = _MAP.sub("\n", (root / source).read_text(encoding="utf-8"))
    changes = "source map comment removed"
    if name == "vega-interpreter":
        code, changes = _script(code), f"{changes}; import and export made globals"
    target, licence = VENDOR / f"{name}-{version}.{ending}", VENDOR / f"{name}-{version}.LICENSE"
    target.write_text(code, encoding="utf-8")
    licence.write_bytes((root / "LICENSE").read_bytes())
    shared = {"name": name, "version": version, "licence": told["license"], "package": f"{name}-{version}.tgz"}
    return [
        {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} | shared | {"source": source_, "changes": changes_}
        for path, source_, changes_ in ((target, source, changes), (licence, "LICENSE", "none"))
    ]


def _script(module: str) -> str:
    """A module as a classic script: it reads the global ``vega`` and sets ``vegaInterpreter``."""
    code, imports = _IMPORT.subn(r"const {\1} = globalThis.vega;", module)
    code, exports = _EXPORT.subn("globalThis.vegaInterpreter = { expressionInterpreter: expression };", code)
    if (imports, exports) != (1, 1):
        raise SystemExit("vega-interpreter is no longer the module this was written for")
    return "(() => {\n" + code.rstrip() + "\n})();\n"


if __name__ == "__main__":
    main()
