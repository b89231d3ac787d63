"""The prefix cache: block pool, choice of victims, policies, the offline optimum. Compiled; knows arrays only."""
