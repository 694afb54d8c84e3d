"""`python -m clusterctl`: the same as the command."""

import sys

from clusterctl.cli.main import main

sys.exit(main())
