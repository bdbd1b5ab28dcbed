package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx := context.Background()
	start := map[string]map[int32]kgo.Offset{"hellos": {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers("127.0.0.1:9092"), kgo.AllowAutoTopicCreation(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ConsumePartitions(start))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	hello := &kgo.Record{Topic: "hellos", Partition: 0, Value: []byte("hello")}
	if err := client.ProduceSync(ctx, hello).FirstErr(); err != nil {
		panic(err)
	}
	for _, record := range client.PollFetches(ctx).Records()[:1] {
		fmt.Println(record.Offset, string(record.Value))
	}
}
