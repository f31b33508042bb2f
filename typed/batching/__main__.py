"""`python -m batching` of the wheel; in the repository batching.py does this itself."""

from batching_costs import main

main()
