"""Agents under real deployments, by hand and as root: ``python -m tests.cluster.real.NAME``.

``tests/cluster/real/install.sh`` installs what the modules need on Debian. All services are private: they have
directories, ports and keys of their own, and end with the script.
"""
