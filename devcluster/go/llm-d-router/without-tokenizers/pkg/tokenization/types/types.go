// Package types names what the endpoint picker hands to a tokenizer of its own.
package types

// RenderChatRequest is never read: see package tokenization.
type RenderChatRequest struct{}

// Offset is where a token begins and ends in a text.
type Offset [2]uint
