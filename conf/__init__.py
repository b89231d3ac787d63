"""Hydra configuration, `pkg://saecache_rl.conf`; one YAML file for each choice."""
