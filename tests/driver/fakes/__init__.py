"""What plays a node, its kernel and its neighbours for tests without root.

node                   `FakeNode`, a node with a driver and a cache: start here
kernel                 the kernel: /proc, /sys, module system calls; refuses what a kernel refuses
module_writer          module files, byte by byte, that kmod accepts, and wrong ones
kmod                   what the real kmod says of a module file
bundles, compatible    bundles; one for another kernel that fits this one
keys                   a signing key, its certificate, a module to sign
handoff                the sidecar's half of the hand-off, and a clock
apiserver              an API server over TLS, for the calls that a node makes
registry, webserver    a real OCI registry; an HTTP server that misbehaves as told
odd_answers, hostile   answers that nobody would think of; what every reader must answer to them
uevents                what the kernel announces
pages                  what docs/ say of JSON documents

A test of the ladder, for one:

    def test_a_driver_in_the_cache_is_loaded(node: FakeNode) -> None:
        task = node.task()
        node.put_bundle(task)

        report = node.bring_up(task)

        assert report.source is Rung.CACHED
        assert node.kernel.loads == ["straw"]

`node.run("load", "--output", "json")` is the same by the command that a person types, up to the
exit code and the output. A real kernel does what this one plays in tests/vm.
"""
