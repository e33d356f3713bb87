"""``python -m nsctl``."""

from nsctl.cli import main

main()
