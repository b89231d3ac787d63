"""The eviction policies, one module each; `conf/agent` names them."""
