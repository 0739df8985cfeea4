"""What the scheduler decides with: queues, rows, a step's batch and what ends an answer."""
