"""Writes what is in an image: nodeside and its Debian packages, as SPDX 2.3 in JSON.

    python3 sbom.py IMAGE VERSION [ROOT]

Reads the status file of dpkg below ROOT and writes ROOT/usr/share/sbom/IMAGE.spdx.json. The time in
it is SOURCE_DATE_EPOCH if that is set. See https://spdx.github.io/spdx-spec/v2.3/ and
https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote


def main(image: str, version: str, root: Path) -> None:
    status = (root / "var/lib/dpkg/status").read_text()
    packages = [described("nodeside", version, f"pkg:generic/nodeside@{quote(version)}")]
    for entry in status.strip().split("\n\n"):
        fields = dict(re.findall(r"^([A-Z]\w+): (.*)$", entry, re.MULTILINE))
        if not fields["Status"].endswith(" installed"):
            continue
        name, of = fields["Package"], quote(fields["Version"], safe="")
        purl = f"pkg:deb/debian/{quote(name)}@{of}?arch={fields['Architecture']}"
        packages.append(described(name, fields["Version"], purl))
    content = hashlib.sha256(json.dumps(packages).encode()).hexdigest()
    created = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": image,
        "documentNamespace": f"https://nodeside.io/spdx/{image}-{version}-{content}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", created),
            "creators": ["Tool: nodeside-images"],
        },
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": package["SPDXID"],
            }
            for package in packages
        ],
    }
    target = root / "usr/share/sbom" / f"{image}.spdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")


def described(name: str, version: str, purl: str) -> dict[str, Any]:
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ],
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(*sys.argv[3:4] or ["/"]))
