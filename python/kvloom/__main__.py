"""`python -m kvloom` is the kvloom tool; the wheel carries the program."""

import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "kvloom")
    if not os.path.exists(program):
        sys.exit(f"kvloom: {program} is missing: install the package again")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
