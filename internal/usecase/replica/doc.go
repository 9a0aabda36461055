// Package replica reserves what replicas of served models need among all else that runs. Each
// is a workload of compute: the scheduler sees it, gives it room or says why not, and may ask
// for the room back. What an earlier process had is no replica any more, and ends.
//
// # Map
//
//   - local.go: replicas on this machine, which this process runs itself.
//   - remote.go: replicas on other pools, which their engine runs.
//   - call.go: the other end: how the process of a remote replica calls its server.
//
// The engine of another pool runs this binary there, in Mode. It calls the server with the
// token of its workload, which is good for nothing else, and is given the model over that
// connection (httpapi's route …/workloads/{workload}/replica): the way that agents go, so no
// further network path is needed. A replica lives as long as its connection: when either end
// goes away, the other one is notified, and the workload ends. So nothing of it is left when
// the server is killed.
package replica
