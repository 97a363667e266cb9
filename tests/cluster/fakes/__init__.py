"""What plays a cluster for tests of the controller.

model                    `Model`, a cluster in memory that does what a plan says: start here
drains, rollouts, images, silent_nodes, stage_ends, stagedriver, stagejobs, stage_pods
                         models in the state that their name says, with what moves them on
daemonsets, statuses, problems, reported, settings, same
                         documents of every kind; as much of each as there may be
clock, loop              a clock that a test moves; the controller's loop without threads
api, scripted            an API server that answers as it is told, for what a real one does rarely
stored, recording        one that holds objects; a model whose objects it holds
driverpods, installed    driver pods on a real API server; what of nodeside is installed there

A test of a rollout, for one:

    def test_a_new_version_is_rolled_out_to_every_node() -> None:
        model = Model()
        model.add(["n1", "n2"])
        model.apply_driver(version="1.0.0")
        model.settle_ready()

        model.apply_driver(version="2.0.0")
        model.settle_ready()

        assert model.revision("n1") == model.revision("n2")
        assert model.condition("Ready")["status"] == "True"

Each plan of a `Model` is compared with one that remembers earlier plans. A real API server does
what this one plays in tests/cluster/e2e.
"""
