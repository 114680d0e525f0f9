"""What `kvloom bench` writes of the machine and the build, for programs that measure through Python."""

import os
import re
import subprocess
import sys


def machine():
    said = subprocess.run([sys.executable, "-m", "kvloom", "doctor"], capture_output=True, text=True, check=False).stdout
    version, commit, compiler = re.search(r"kvloom (\S+) \(([\w-]+)\), (.*)", said).groups()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    return {
        "cpu": cpu,
        "targets": " ".join(reversed(re.findall(r"cpu target (\w+) +runs here", said))),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": next((line for line in said.splitlines() if line.startswith("Linux")), "?"),
        "compiler": compiler,
        "version": version,
        "commit": commit,
    }
