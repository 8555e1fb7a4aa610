"""Holds docker-compose.yml against the Compose Specification, with the defaults of its variables. Needs no
Docker. Ends with 1 when a setting is none that Compose knows, or a value is none that it may have."""

import re
import sys
from pathlib import Path

from compose_spec import PyOptions

FILE = Path(__file__).parents[2] / "docker-compose.yml"


def interpolated(text):
    """`${NAME:-default}` as Compose reads it; `$$` is a dollar sign."""
    text = re.sub(r"(?<!\$)\$\{\w+(?::-([^}]*))?\}", lambda found: found[1] or "", text)
    if left := re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", text):
        sys.exit(f"{FILE.name}: this check does not know {text[left.start():left.start() + 20]!r}")
    return text.replace("$$", "$")


def refused(text):
    try:
        compose = PyOptions(apply_merge=True).from_yaml(text)
        compose.validate()
    except Exception as error:  # noqa: BLE001, whatever it is called: it says what is wrong
        return str(error)
    return None


def main():
    text = interpolated(FILE.read_text())
    if error := refused(text):
        sys.exit(f"{FILE.name}: {error}")
    # A schema that lets everything through proves nothing.
    for right, wrong in [("restart: unless", "restrat: unless"), ("interval: 5s", "interval: soon"), ('"127.0.0.1:3000:', '"127.0.0:3000:')]:
        if right not in text or not refused(text.replace(right, wrong, 1)):
            sys.exit(f"{FILE.name} with {wrong!r} for {right!r} is not refused: the check sees nothing")
    services = len(PyOptions(apply_merge=True).from_yaml(text).service_names())
    print(f"{FILE.name}: {services} services, as the Compose Specification has it")


main()
