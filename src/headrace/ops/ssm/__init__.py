"""The state space recurrence of Mamba 2."""
