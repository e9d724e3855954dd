// Package e2e holds the tests of the whole: our programs as processes on a
// real Kubernetes node (package cluster), driven the way users drive them.
//
// One cluster is shared by the tests of the package (function shared); a test
// that needs other settings starts its own. Tests share one node and its two
// simulated cards, so they do not run in parallel and leave no pods behind.
package e2e
