"""The process as an executor of runs: slots and claims, its lease, and recovery of what others left behind."""
