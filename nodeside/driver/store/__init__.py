"""Stores of prebuilt bundles: OCI registries, HTTP servers and directories.

    base                  the vocabulary: Store, FetchOptions, FetchError
    sources               asks the sources of a driver.yaml in order
    oci, http_directory, directory     the kinds of stores
    transport             one HTTP exchange after another, with retries and redirects
    registry_auth, credentials         token auth and docker config.json
    addresses             addresses that others name: redirects, uploads, proxies
    download              a resumable download with a digest
    http_errors           an exchange that failed, as a FetchError
    publish               put a bundle into a store

What a store answers is data: it cannot stop, fill or crash us. `requests` is imported late.
"""
