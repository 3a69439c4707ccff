"""The torch side of IQL, VDN and QMIX."""
