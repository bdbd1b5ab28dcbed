//go:build sarama

package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

type saramaClient struct {
	bootstrap, prefix string
	admin             sarama.ClusterAdmin
}

var saramaCodecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

func init() {
	clients["sarama"] = saramaCases
}

func saramaCases(bootstrap, prefix string) []namedCase {
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, settings())
	if err != nil {
		panic(err)
	}
	s := &saramaClient{bootstrap, prefix, admin}
	return []namedCase{
		{"codecs", s.codecs}, {"acks", s.acks}, {"idempotent", s.idempotent},
		{"auto_create", s.autoCreate}, {"positions", s.positions}, {"metadata", s.metadata},
		{"topics", s.topics}, {"delete_records", s.deleteRecords}, {"offsets", s.offsets},
		{"configs", s.configs}, {"too_large", s.tooLarge}, {"transactions", s.transactions},
		{"fencing", s.fencing}, {"transaction_timeout", s.transactionTimeout}, {"cluster", s.cluster},
	}
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_1_0_0
	config.ClientID = "sarama"
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Return.Errors = true
	return config
}

func (s *saramaClient) create(name string, partitions int32, configs map[string]*string) error {
	return s.admin.CreateTopic(name, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: configs,
	}, false)
}

func (s *saramaClient) topic(name string, partitions int32, configs map[string]*string) (string, error) {
	full := s.prefix + "-" + name
	if err := s.create(full, partitions, configs); err != nil {
		return full, err
	}
	return full, soon(func() error {
		found, err := s.admin.DescribeTopics([]string{full})
		if err != nil {
			return err
		}
		return expect(len(found[0].Partitions), partitions)
	})
}

// The offsets of the records.
func (s *saramaClient) produce(topic string, written []record, change func(*sarama.Config)) ([]int64, error) {
	config := settings()
	if change != nil {
		change(config)
	}
	producer, err := sarama.NewSyncProducer([]string{s.bootstrap}, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	made := make([]*sarama.ProducerMessage, len(written))
	for at, one := range written {
		made[at] = &sarama.ProducerMessage{Topic: topic, Timestamp: time.UnixMilli(one.timestampMs)}
		if one.key != nil {
			made[at].Key = sarama.ByteEncoder(one.key)
		}
		if one.value != nil {
			made[at].Value = sarama.ByteEncoder(one.value)
		}
		for _, h := range one.headers {
			made[at].Headers = append(made[at].Headers, sarama.RecordHeader{Key: []byte(h.key), Value: h.value})
		}
	}
	err = producer.SendMessages(made)
	var several sarama.ProducerErrors
	if errors.As(err, &several) {
		err = several[0].Err
	}
	offsets := make([]int64, len(made))
	for at, one := range made {
		offsets[at] = one.Offset
	}
	slices.Sort(offsets)
	return offsets, err
}

func (s *saramaClient) consume(topic string, count int, from int64) ([]*sarama.ConsumerMessage, error) {
	consumer, err := sarama.NewConsumer([]string{s.bootstrap}, settings())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, from)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var seen []*sarama.ConsumerMessage
	for timeout := time.After(wait); len(seen) < count; {
		select {
		case message := <-partition.Messages():
			seen = append(seen, message)
		case err := <-partition.Errors():
			return nil, err
		case <-timeout:
			return nil, fmt.Errorf("expected %d records, saw %d", count, len(seen))
		}
	}
	return seen, nil
}

// Sarama writes and shows null header values as empty ones.
func (s *saramaClient) roundTrip(topic string, written []record, change func(*sarama.Config)) error {
	offsets, err := s.produce(topic, written, change)
	if err != nil {
		return err
	}
	if err := expect(offsets, offsetsOf(len(written))); err != nil {
		return err
	}
	seen, err := s.consume(topic, len(written), sarama.OffsetOldest)
	if err != nil {
		return err
	}
	return s.same(seen, written)
}

func (s *saramaClient) same(seen []*sarama.ConsumerMessage, written []record) error {
	for at, one := range seen {
		other := written[at]
		if !equal(one.Key, other.key) || !equal(one.Value, other.value) ||
			one.Timestamp.UnixMilli() != other.timestampMs || len(one.Headers) != len(other.headers) {
			return fmt.Errorf("record %d: expected %+v, saw %+v", at, other, one)
		}
		for number, h := range one.Headers {
			if string(h.Key) != other.headers[number].key || string(h.Value) != string(other.headers[number].value) {
				return fmt.Errorf("record %d: expected %+v, saw %+v", at, other, one)
			}
		}
	}
	return nil
}

func failsAs(wanted sarama.KError, err error) error {
	if errors.Is(err, wanted) {
		return nil
	}
	var topicError *sarama.TopicError
	if errors.As(err, &topicError) && topicError.Err == wanted {
		return nil
	}
	return fmt.Errorf("expected %v, saw %v", wanted, err)
}

func (s *saramaClient) codecs() error {
	for _, codec := range codecs {
		name, err := s.topic(codec, 1, nil)
		if err != nil {
			return err
		}
		use := func(config *sarama.Config) { config.Producer.Compression = saramaCodecs[codec] }
		if err := s.roundTrip(name, records(), use); err != nil {
			return fmt.Errorf("%s: %w", codec, err)
		}
	}
	return nil
}

func (s *saramaClient) acks() error {
	name, err := s.topic("acks", 1, nil)
	if err != nil {
		return err
	}
	for _, acks := range []sarama.RequiredAcks{sarama.NoResponse, sarama.WaitForLocal, sarama.WaitForAll} {
		if _, err := s.produce(name, records(), func(config *sarama.Config) { config.Producer.RequiredAcks = acks }); err != nil {
			return err
		}
	}
	seen, err := s.consume(name, 15, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	return s.same(seen, slices.Concat(records(), records(), records()))
}

func (s *saramaClient) idempotent() error {
	name, err := s.topic("idempotent", 1, nil)
	if err != nil {
		return err
	}
	return s.roundTrip(name, numbered(500), func(config *sarama.Config) {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
		config.Producer.Flush.MaxMessages = 50
	})
}

func (s *saramaClient) autoCreate() error {
	return s.roundTrip(s.prefix+"-auto", records()[:1], nil)
}

func (s *saramaClient) positions() error {
	name, err := s.topic("positions", 1, nil)
	if err != nil {
		return err
	}
	if _, err := s.produce(name, records(), nil); err != nil {
		return err
	}
	for _, from := range []int64{0, 2, 4} {
		seen, err := s.consume(name, 1, from)
		if err != nil {
			return err
		}
		if err := expect(seen[0].Offset, from); err != nil {
			return err
		}
	}
	return nil
}

func (s *saramaClient) metadata() error {
	name, err := s.topic("metadata", 3, nil)
	if err != nil {
		return err
	}
	found, err := s.admin.DescribeTopics([]string{name, s.prefix + "-missing"})
	if err != nil {
		return err
	}
	return firstError(
		expect(len(found[0].Partitions), 3),
		failsAs(sarama.ErrUnknownTopicOrPartition, found[1].Err),
	)
}

func (s *saramaClient) topics() error {
	name, err := s.topic("topics", 2, nil)
	if err != nil {
		return err
	}
	return firstError(
		failsAs(sarama.ErrTopicAlreadyExists, s.create(name, 1, nil)),
		failsAs(sarama.ErrInvalidTopic, s.create("not/a/name", 1, nil)),
		failsAs(sarama.ErrInvalidPartitions, s.create(s.prefix+"-no-partitions", 0, nil)),
		s.admin.CreatePartitions(name, 4, nil, false),
		s.admin.DeleteTopic(name),
		failsAs(sarama.ErrUnknownTopicOrPartition, s.admin.DeleteTopic(name)),
	)
}

func (s *saramaClient) deleteRecords() error {
	name, err := s.topic("delete-records", 1, nil)
	if err != nil {
		return err
	}
	if _, err := s.produce(name, records(), nil); err != nil {
		return err
	}
	if err := s.admin.DeleteRecords(name, map[int32]int64{0: 3}); err != nil {
		return err
	}
	seen, err := s.consume(name, 1, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	return expect(seen[0].Offset, 3)
}

func (s *saramaClient) offsets() error {
	name, err := s.topic("offsets", 1, nil)
	if err != nil {
		return err
	}
	if _, err := s.produce(name, records(), nil); err != nil {
		return err
	}
	client, err := sarama.NewClient([]string{s.bootstrap}, settings())
	if err != nil {
		return err
	}
	defer client.Close()
	for asked, wanted := range map[int64]int64{
		sarama.OffsetOldest: 0, sarama.OffsetNewest: 5, baseMs + 1500: 2, baseMs + 9999: -1,
	} {
		found, err := client.GetOffset(name, 0, asked)
		if err := firstError(err, expect(found, wanted)); err != nil {
			return err
		}
	}
	return nil
}

func (s *saramaClient) retention(name string) (string, error) {
	entries, err := s.admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: name, ConfigNames: []string{"retention.ms"},
	})
	if err != nil || len(entries) != 1 {
		return "", fmt.Errorf("%d entries: %v", len(entries), err)
	}
	return entries[0].Value, nil
}

func (s *saramaClient) configs() error {
	first, second, wrong := "1000000", "2000000", "soon"
	name, err := s.topic("configs", 1, map[string]*string{"retention.ms": &first})
	if err != nil {
		return err
	}
	alter := func(op sarama.IncrementalAlterConfigsOperation, value *string) error {
		entries := map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": {Operation: op, Value: value}}
		return s.admin.IncrementalAlterConfig(sarama.TopicResource, name, entries, false)
	}
	is := func(wanted string) error {
		return soon(func() error {
			seen, err := s.retention(name)
			return firstError(err, expect(seen, wanted))
		})
	}
	if err := firstError(
		is(first),
		alter(sarama.IncrementalAlterConfigsOperationSet, &second), is(second),
		alter(sarama.IncrementalAlterConfigsOperationDelete, nil), is("604800000"),
	); err != nil {
		return err
	}
	if alter(sarama.IncrementalAlterConfigsOperationSet, &wrong) == nil {
		return errors.New("a wrong value was taken")
	}
	return nil
}

func (s *saramaClient) tooLarge() error {
	small := "10000"
	name, err := s.topic("too-large", 1, map[string]*string{"max.message.bytes": &small})
	if err != nil {
		return err
	}
	_, err = s.produce(name, []record{{nil, make([]byte, 20_000), nil, baseMs}}, nil)
	return firstError(failsAs(sarama.ErrMessageSizeTooLarge, err), s.roundTrip(name, records()[:1], nil))
}

func (s *saramaClient) cluster() error {
	brokers, controller, err := s.admin.DescribeCluster()
	if err != nil {
		return err
	}
	for _, broker := range brokers {
		if broker.ID() == controller {
			return nil
		}
	}
	return fmt.Errorf("controller %d is none of %d brokers", controller, len(brokers))
}

func (s *saramaClient) transactional(tx string, timeout time.Duration) (sarama.SyncProducer, error) {
	config := settings()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Transaction.ID = s.prefix + "-" + tx
	config.Producer.Transaction.Timeout = timeout
	return sarama.NewSyncProducer([]string{s.bootstrap}, config)
}

func sent(producer sarama.SyncProducer, topic string, partition int32, value string) error {
	_, _, err := producer.SendMessage(&sarama.ProducerMessage{
		Topic: topic, Partition: partition, Value: sarama.StringEncoder(value),
	})
	return err
}

// Offsets and values, from the beginning.
func (s *saramaClient) read(topic string, partition int32, count int, isolation sarama.IsolationLevel) ([]string, error) {
	config := settings()
	config.Consumer.IsolationLevel = isolation
	consumer, err := sarama.NewConsumer([]string{s.bootstrap}, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	from, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	var told []string
	for timeout := time.After(wait); len(told) < count; {
		select {
		case message := <-from.Messages():
			told = append(told, fmt.Sprint(message.Offset, " ", string(message.Value)))
		case err := <-from.Errors():
			return nil, err
		case <-timeout:
			return nil, fmt.Errorf("expected %d records, saw %d", count, len(told))
		}
	}
	return told, nil
}

func (s *saramaClient) transactions() error {
	name, err := s.topic("transactions", 3, nil)
	if err != nil {
		return err
	}
	producer, err := s.transactional("tx", time.Minute)
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, letter := range []string{"c", "a", "d"} {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		for partition := range int32(3) {
			if err := sent(producer, name, partition, fmt.Sprint(letter, partition)); err != nil {
				return err
			}
		}
		end := producer.CommitTxn
		if letter == "a" {
			end = producer.AbortTxn
		}
		if err := end(); err != nil {
			return err
		}
	}
	for partition := range int32(3) {
		committed, err := s.read(name, partition, 2, sarama.ReadCommitted)
		if err != nil {
			return err
		}
		all, err := s.read(name, partition, 3, sarama.ReadUncommitted)
		c, a, d := fmt.Sprint("0 c", partition), fmt.Sprint("2 a", partition), fmt.Sprint("4 d", partition)
		if err := firstError(err, expect(committed, []string{c, d}), expect(all, []string{c, a, d})); err != nil {
			return err
		}
	}
	return nil
}

// Sarama makes a fatal error of its own of each.
func isFencedProducer(producer sarama.SyncProducer, err error) error {
	if err != nil && producer.TxnStatus()&sarama.ProducerTxnFlagFatalError != 0 {
		return nil
	}
	return fmt.Errorf("it is not fenced: %v", err)
}

func (s *saramaClient) fencing() error {
	name, err := s.topic("fencing", 1, nil)
	if err != nil {
		return err
	}
	old, err := s.transactional("fenced", time.Minute)
	if err != nil {
		return err
	}
	defer old.Close()
	newer, err := s.transactional("fenced", time.Minute)
	if err != nil {
		return err
	}
	defer newer.Close()
	if err := old.BeginTxn(); err != nil {
		return err
	}
	if err := isFencedProducer(old, sent(old, name, 0, "old")); err != nil {
		return err
	}
	if err := firstError(newer.BeginTxn(), sent(newer, name, 0, "new"), newer.CommitTxn()); err != nil {
		return err
	}
	seen, err := s.read(name, 0, 1, sarama.ReadUncommitted)
	_, refused := s.transactional("slow", 900_001*time.Millisecond)
	return firstError(err, expect(seen, []string{"0 new"}), failsAs(sarama.ErrInvalidTransactionTimeout, refused))
}

func (s *saramaClient) transactionTimeout() error {
	name, err := s.topic("transaction-timeout", 1, nil)
	if err != nil {
		return err
	}
	producer, err := s.transactional("late", 3*time.Second)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := firstError(producer.BeginTxn(), sent(producer, name, 0, "late")); err != nil {
		return err
	}
	if _, err := s.produce(name, []record{{nil, []byte("behind"), nil, baseMs}}, nil); err != nil {
		return err
	}
	seen, err := s.read(name, 0, 1, sarama.ReadCommitted)
	if err := firstError(err, expect(seen, []string{"1 behind"})); err != nil {
		return err
	}
	return isFencedProducer(producer, producer.CommitTxn())
}
