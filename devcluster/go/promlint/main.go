// promlint checks the Prometheus text format on standard input with the linter that
// `promtool check metrics` runs, and prints one problem per line: the metric, a tab, what is wrong.
// It exits with 1 when the text cannot be parsed at all. Building promtool itself would pull in the
// clients of every cloud that Prometheus can discover targets in.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Printf("%s\t%s\n", problem.Metric, problem.Text)
	}
}
