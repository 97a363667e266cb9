"""The command line interface `nodeside-cluster`.

main                  the commands, which import their code when called
installation          the commands that install, uninstall and print manifests
options               shared options; role hints for refused requests
status, explain       the status of Drivers; the reasons for the state of a Driver or node
advice, remedies      what to type, which `explain` ends with; the table by reason and state
node_pods             the kubelet's events about driver pods; the names of pods that hold a module
node_list, pod_logs    the state of each node; the log of a driver pod
node_verbs            the options and output of these two
verbs, rollout_verbs    the orders of a rollout, each of one request; their options and output
diff, driver_diff     what an apply of a file would do: options; the comparison, from one snapshot
driver_documents      the Drivers of a file, document by document
driver_diff_nodes, driver_diff_text    the order of the nodes; what is printed
fleet_report          the same for all nodes, on one page of HTML
resolve               the toolkit image that a node gets
check                 what a cluster lacks for nodeside and a driver
near_names            what may be meant by a name that is not there
image_pulls           what to do about an image that cannot be pulled
preflight, trial_build    a trial build for a kernel that no node runs yet
kmm_module            a Module of Kernel Module Management as a Driver, for `import`
kmm_workload, kmm_remarks    its device plugin or DRA driver; what is said of its other keys
document_keys         a document that knows which of its keys were read
completion            completion in a shell, and of `kubectl nodeside`
installed_settings    the settings of the installed controller
leader_status         whether a controller leads
extra                 a hint for missing packages
"""
