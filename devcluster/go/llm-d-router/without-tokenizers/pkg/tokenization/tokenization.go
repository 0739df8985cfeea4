// Package tokenization stands in for llm-d's tokenizers behind Unix sockets, which its endpoint
// picker still names and has given up for the engines' own /render. It refuses to make one.
package tokenization

import (
	"context"
	"errors"

	"github.com/llm-d/llm-d-kv-cache/pkg/tokenization/types"
)

var errLeftOut = errors.New("this build has no tokenizers behind Unix sockets; use vllm.url")

// UdsTokenizerConfig is the configuration of a tokenizer behind a socket.
type UdsTokenizerConfig struct {
	SocketFile string `json:"socketFile,omitempty"`
}

// IsEnabled tells whether one is asked for.
func (c *UdsTokenizerConfig) IsEnabled() bool { return c != nil && c.SocketFile != "" }

// PlaceholderRange is where the tokens of an image are.
type PlaceholderRange struct{ Offset, Length int }

// MultiModalFeatures are the images and sounds of a prompt.
type MultiModalFeatures struct {
	MMHashes       map[string][]string
	MMPlaceholders map[string][]PlaceholderRange
}

// UdsTokenizer cannot be made.
type UdsTokenizer struct{}

// NewUdsTokenizer refuses.
func NewUdsTokenizer(context.Context, *UdsTokenizerConfig, string) (*UdsTokenizer, error) {
	return nil, errLeftOut
}

// Render refuses.
func (*UdsTokenizer) Render(string) ([]uint32, []types.Offset, error) {
	return nil, nil, errLeftOut
}

// RenderChat refuses.
func (*UdsTokenizer) RenderChat(*types.RenderChatRequest) ([]uint32, *MultiModalFeatures, error) {
	return nil, nil, errLeftOut
}

// Config is that of a pool of tokenizers.
type Config struct{}

// Pool cannot be made.
type Pool struct{}

// NewTokenizationPool refuses.
func NewTokenizationPool(context.Context, *Config) (*Pool, error) { return nil, errLeftOut }

// Run ends at once.
func (*Pool) Run(context.Context) {}

// Tokenize finds no token.
func (*Pool) Tokenize(*types.RenderChatRequest, string) ([]uint32, *MultiModalFeatures) {
	return nil, nil
}
