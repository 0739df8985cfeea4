// Asks an endpoint picker, as a gateway does, where requests should go; prints one address a line.
//
//	ask-endpoint-picker HOST:PORT COUNT MODEL
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const destination = "x-gateway-destination-endpoint"

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: ask-endpoint-picker HOST:PORT COUNT MODEL")
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatalf("COUNT: %v", err)
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	connection, err := grpc.NewClient(os.Args[1], plain)
	if err != nil {
		log.Fatal(err)
	}
	client := extproc.NewExternalProcessorClient(connection)
	for number := range count {
		chosen, err := ask(client, os.Args[3], number)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(chosen)
	}
}

// ask sends the headers and the body of one request, and reads on until a destination is named.
func ask(client extproc.ExternalProcessorClient, model string, number int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return "", err
	}
	body := fmt.Sprintf(`{"model": %q, "prompt": "question %d", "max_tokens": 4}`, model, number)
	for _, request := range []*extproc.ProcessingRequest{headers(number), content(body)} {
		if err := stream.Send(request); err != nil {
			return "", err
		}
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return "", err
		}
		if refused := answer.GetImmediateResponse(); refused != nil {
			return "", fmt.Errorf("refused with %v: %s", refused.GetStatus(), refused.GetBody())
		}
		if chosen := destinationIn(answer); chosen != "" {
			return chosen, nil
		}
	}
}

func headers(number int) *extproc.ProcessingRequest {
	values := []*core.HeaderValue{
		{Key: ":method", RawValue: []byte("POST")},
		{Key: ":path", RawValue: []byte("/v1/completions")},
		{Key: "x-request-id", RawValue: fmt.Appendf(nil, "question-%d", number)},
	}
	sent := &extproc.HttpHeaders{Headers: &core.HeaderMap{Headers: values}}
	return &extproc.ProcessingRequest{
		Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: sent},
	}
}

func content(body string) *extproc.ProcessingRequest {
	sent := &extproc.HttpBody{Body: []byte(body), EndOfStream: true}
	return &extproc.ProcessingRequest{
		Request: &extproc.ProcessingRequest_RequestBody{RequestBody: sent},
	}
}

func destinationIn(answer *extproc.ProcessingResponse) string {
	for _, common := range []*extproc.CommonResponse{
		answer.GetRequestHeaders().GetResponse(), answer.GetRequestBody().GetResponse(),
	} {
		for _, header := range common.GetHeaderMutation().GetSetHeaders() {
			if header.GetHeader().GetKey() == destination {
				return string(header.GetHeader().GetRawValue())
			}
		}
	}
	return ""
}
