"""Runs as jobs of a batch system, whichever it is (docs/schedulers.md).

system      the protocol: what a batch system does in four calls
cluster     how a launch starts
scheduler   submits runs, adopts jobs of earlier launches, and notices how jobs end
job         what each job executes
"""
