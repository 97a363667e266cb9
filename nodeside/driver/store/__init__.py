"""Stores of prebuilt bundles: OCI registries, HTTP servers and directories.

    base                  the common interface: Store, FetchOptions, FetchError
    sources               tries the sources of a driver.yaml in order
    oci, http_directory, directory     the kinds of stores
    transport             HTTP requests with retries and redirects
    registry_auth, credentials         token auth and docker config.json
    addresses             checks of URLs from others: redirects, uploads, proxies
    download              a resumable download with a digest
    http_errors           converts a failed exchange into a FetchError
    publish               puts a bundle into a store

Responses of a store are untrusted data: they cannot block the process, fill the disk or crash us.
`requests` is imported late.
"""
