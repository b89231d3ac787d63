"""From records to `Trace`: generators, loaders of public formats, and which requests form a session."""
