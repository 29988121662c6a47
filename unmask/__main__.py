"""The command `unmask`, also as `python -m unmask`."""

import os
import sys

from unmask.base.errors import UserError
from unmask.base.extras import require_extra
from unmask.base.memory import keep_memory


def main() -> None:
    """Run the command line; without the packages that it needs, say how to install them."""
    # Threads of torch that wait sleep: spinning, they would hold up whoever shares the cores.
    # OpenMP reads this once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_memory()
    try:
        require_extra("study", "the command unmask")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from unmask.cli.exits import stop_alike

    with stop_alike():  # these imports take seconds on a busy machine, and Ctrl-C may come then
        from unmask.cli.main import run_command_line as run

        run()


if __name__ == "__main__":
    main()
