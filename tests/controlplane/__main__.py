"""`make control-plane`: a control plane for a person, until Ctrl-C; `clean` removes the cache."""

from __future__ import annotations

import shutil
import signal
import sys

from nodeside.errors import ExitCode, NodesideError
from nodeside.trial.progress import Progress
from tests.controlplane.binaries import cache_directory
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import install_image_streams


def main() -> int:
    """Prints what to paste on stdout, everything else on stderr."""
    if sys.argv[1:] == ["clean"]:
        shutil.rmtree(cache_directory(), ignore_errors=True)
        return 0
    if sys.argv[1:]:
        sys.stderr.write("usage: python -m tests.controlplane [clean]\n")
        return int(ExitCode.USAGE)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    progress = Progress()
    try:
        with ControlPlane(progress.print_step) as control_plane:
            install_image_streams(control_plane)
            _tell(control_plane)
            progress.print_step(
                "Ctrl-C ends all of it; to use it from another shell, paste what is above"
            )
            signal.pause()
    except KeyboardInterrupt:
        progress.print_step("stopped, and nothing is left")
    except NodesideError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return int(error.exit_code)
    return 0


def _tell(control_plane: ControlPlane) -> None:
    """The environment of a shell in which `kubectl` works."""
    lines = [f"export KUBECONFIG={control_plane.kubeconfig}"]
    if shutil.which("kubectl") is None:
        lines.append(f"export PATH={control_plane.binaries['kubectl'].parent}:$PATH")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
