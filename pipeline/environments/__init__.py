"""Environments: what answers the policy's turns. One file is one plug-in, as for verifiers."""
