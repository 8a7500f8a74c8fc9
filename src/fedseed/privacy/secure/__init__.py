"""Secure sums: the coordinator learns the sum of the clients' vectors, and of no single one anything.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017. docs/secure-sums.md says what it protects against, and what not.

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)    in whole numbers modulo 2^bits

    fixed       vectors as whole numbers        shamir    secrets cut into shares
    keys        agreement, encryption, masks    messages  what is said, as bytes
    client      one client's side               summing   the coordinator's

Nothing here knows rounds' content, transports or methods: bytes come in, bytes go out.
"""
