package onlinetest_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
)

func TestMemory(t *testing.T) {
	onlinetest.Run(t, func(testing.TB) online.Driver { return &onlinetest.Memory{} })
}
