# Looks at the uplink of sandboxes, whose rules are nftables'.
dsec-doctor_LIBS := -lnftnl -lmnl
