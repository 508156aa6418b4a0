"""Run a static aarch64 program of Linux on this machine: `emulate.py PROGRAM`; exits as it does."""

import sys
import tempfile

from qiling import Qiling
from qiling.const import QL_VERBOSE


def main() -> int:
    with tempfile.TemporaryDirectory() as root:  # what the program sees as /
        machine = Qiling(sys.argv[1:], root, verbose=QL_VERBOSE.OFF, multithread=True)
        machine.run()
        return int(machine.os.exit_code)


if __name__ == "__main__":
    sys.exit(main())
