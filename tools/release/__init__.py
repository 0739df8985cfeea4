"""What is published of one commit: `make release`, `python -m tools.release build|verify|publish`.

    source      one clean commit, exported, and the version that all its parts agree on
    contents    every file of the release, made from that commit alone
    signing     keyed signatures that cosign reads too
    registry    chart and images in an OCI registry, through crane

The same commit with the same arguments gives the same bytes: every time in a file is the commit's.
"""
